// What a model's configuration asks of transformers' attention, and dropout that only some of its code has.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "model_specs/config.h"
#include "tests/support/config_file.h"

namespace vramfit {
namespace {

TEST_CASE("attention and dropout that the model's configuration asks of the library") {
  const auto why = [](const char* family, const char* key, const char* attention = "auto",
                      const char* modeling = "transformers") {
    std::string text = testing::small_model_text(family);
    const std::string name = std::string(key).substr(0, std::string(key).find(':'));
    if (const std::size_t there = text.find(name); there != std::string::npos) {  // another value takes its place
      text.replace(there, text.find_first_of(",}", there) - there, key);
    } else {
      text.insert(text.rfind('}'), std::string(", ") + key);
    }
    Job job = unresolved_job();
    for (const auto& [field, value] : {std::pair{"runtime", "pytorch"},
                                       {"precision", "bf16-pure"},
                                       {"modeling", modeling},
                                       {"attention", attention},
                                       {"seq_len", "64"}}) {
      job_field_named(field).set(job, value);
    }
    const ModelSpec spec = parse_config(text, "config.json");
    const Estimate e = estimate(spec, job, parse_cluster("1xH100-80GB"), {.suggestions = false});
    return e.verdict == Verdict::not_modelled ? e.why : "";
  };
  for (const char* family : {"llama", "gpt2", "bert"}) {
    CAPTURE(family);
    for (const char* key : {R"("attn_implementation": "eager")", R"("_attn_implementation": "eager")"}) {
      CHECK(why(family, key).find("attn_implementation eager of the model's configuration (--attention math is)") !=
            std::string::npos);
      CHECK(why(family, key, "math").empty());
    }
    CHECK(why(family, R"("attn_implementation": "sdpa")").empty());
    CHECK(why(family, R"("attn_implementation": null)").empty());
  }
  CHECK(why("llama", R"("attn_implementation": "eager")", "flash", "torchtitan").empty());
  const char* const kDrops = R"("attention_dropout": 0.1)";
  CHECK(why("llama", kDrops).empty());
  CHECK(why("llama", kDrops, "math").find("attention_dropout in eager attention") != std::string::npos);
  CHECK(why("gemma2", kDrops).find("attention_dropout in eager attention") != std::string::npos);
  CHECK(why("gemma3_text", kDrops).empty());
  CHECK(why("phi3", R"("resid_pdrop": 0.1)").find("resid_pdrop of phi3") != std::string::npos);
}

}  // namespace
}  // namespace vramfit
