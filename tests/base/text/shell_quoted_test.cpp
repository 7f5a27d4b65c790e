#include "base/text/shell_quoted.h"

#include <doctest/doctest.h>

namespace vramfit {

TEST_CASE("words that a shell would read otherwise are quoted, others stand as they are") {
  CHECK(shell_words({"a", "", "it's"}) == R"(a '' 'it'\''s')");
  for (const char* const plain : {"all-linear", "replicate=1,shard=4", "backward=post,limit=0", "budget:75%", "~"}) {
    CAPTURE(plain);
    CHECK((shell_quoted(plain) == plain) == (plain[0] != '~'));
  }
  CHECK(shell_quoted("*.q_proj,*.v_proj") == "'*.q_proj,*.v_proj'");
  CHECK(shell_quoted("a b") == "'a b'");
  CHECK(shell_quoted("layers[0]") == "'layers[0]'");
}

}  // namespace vramfit
