#include "executor/training/rope_tables.h"

#include <doctest/doctest.h>

#include <cmath>

#include "executor/training/learning_rate.h"

namespace vramfit {

TEST_CASE("frequencies fall geometrically from one") {
  const std::vector<float> frequencies = rope_frequencies(Rope{}, 8);
  REQUIRE(frequencies.size() == 4);
  CHECK(frequencies[0] == 1.0F);
  CHECK(frequencies[1] == doctest::Approx(0.1));
  CHECK(frequencies[3] == doctest::Approx(0.001));
}

TEST_CASE("llama3's scaling leaves short waves alone and divides long ones") {
  Rope rope;
  rope.theta = 500000;
  rope.scaling = Rope::Scaling::llama3;
  rope.factor = 8;
  const std::vector<float> scaled = rope_frequencies(rope, 128);
  rope.scaling = Rope::Scaling::none;
  const std::vector<float> plain = rope_frequencies(rope, 128);
  CHECK(scaled.front() == plain.front());
  CHECK(scaled.back() == doctest::Approx(plain.back() / 8));
}

TEST_CASE("a table holds cos and sin of position times frequency, row by row") {
  std::vector<float> cos(6), sin(6);
  fill_rope_table({1.0F, 0.5F}, 3, cos.data(), sin.data());
  CHECK(cos[0] == 1.0F);
  CHECK(sin[0] == 0.0F);
  CHECK(cos[4] == doctest::Approx(std::cos(2.0)));
  CHECK(sin[5] == doctest::Approx(std::sin(1.0)));
}

TEST_CASE("the learning rate rises linearly, is highest right after the warmup and falls as a cosine") {
  CHECK(learning_rate_at(1.0, 1, 4, 12) == doctest::Approx(0.25));
  CHECK(learning_rate_at(1.0, 4, 4, 12) == doctest::Approx(1.0));
  CHECK(learning_rate_at(1.0, 5, 4, 12) == doctest::Approx(1.0));
  CHECK(learning_rate_at(1.0, 9, 4, 12) == doctest::Approx(0.5));
  CHECK(learning_rate_at(1.0, 12, 4, 12) > 0);
  CHECK(learning_rate_at(1.0, 1, 0, 1) == doctest::Approx(1.0));
}

}  // namespace vramfit
