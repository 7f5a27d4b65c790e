// What DeepSpeed's configuration says of offload.
#include <doctest/doctest.h>

#include <string>

#include <fmt/format.h>

#include "cli/configs/import.h"
#include "tests/cli/configs/imported.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {

using testing::TemporaryDirectory;
using testing::value_of;

TEST_CASE("each of DeepSpeed's offloads says whether it is pinned, which it is by default") {
  const auto offload_of = [](const std::string& stage, const std::string& blocks) {
    const TemporaryDirectory place;
    const std::string settings = fmt::format(R"({{"zero_optimization": {{"stage": {}, {}}}}})", stage, blocks);
    const ImportedJob job = import_configs({place.write("ds.json", settings)});
    CHECK(job.unmodelled.empty());
    return value_of(job, "offload");
  };
  const std::string pinned = R"({"device": "cpu", "pin_memory": true})",
                    pageable = R"({"pin_memory": false, "device": "cpu"})", neither = R"({"device": "cpu"})";
  CHECK(offload_of("2", R"("offload_optimizer": )" + neither) == "optimizer");
  CHECK(offload_of("2", R"("offload_optimizer": )" + pageable) == "optimizer:pageable");
  CHECK(offload_of("3", R"("offload_optimizer": )" + pageable) == "optimizer:pageable");
  CHECK(offload_of("3", R"("offload_optimizer": {"device": "none", "pin_memory": false})") == "");
  const auto both = [&](const std::string& states, const std::string& parameters) {
    const std::string forward = fmt::format(R"("offload_optimizer": {}, "offload_param": {})", states, parameters),
                      back = fmt::format(R"("offload_param": {}, "offload_optimizer": {})", parameters, states);
    CHECK(offload_of("3", forward) == offload_of("3", back));
    return offload_of("3", forward);
  };
  CHECK(both(pinned, neither) == "params");
  CHECK(both(pageable, pageable) == "params:pageable");
  CHECK(both(pageable, pinned) == "params,optimizer:pageable");
  CHECK(both(neither, pageable) == "params:pageable,optimizer");
}

}  // namespace vramfit
