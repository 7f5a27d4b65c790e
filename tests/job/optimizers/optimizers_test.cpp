#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/optimizers/optimizers.h"
#include "job/run/run_flags.h"

namespace vramfit {

TEST_CASE("--optimizer takes each value of the list, and a name alone means the first of its values") {
  const JobField& field = job_field_named("optimizer");
  CHECK(field.values == kOptimizerValues);
  for (const OptimizerName& row : optimizer_names()) {
    const std::vector<std::string> values = split_list(row.values, '|');
    for (const std::string& value : values) {
      Job job;
      field.set(job, value);
      CHECK(job.optimizer == row.name);
      CHECK(field.get(job) == value);
    }
    Job job;
    field.set(job, row.name);
    CHECK(field.get(job) == values.front());
  }
  Job job;
  CHECK_THROWS_WITH_AS(field.set(job, "adamv"), doctest::Contains("did you mean \"adamw\""), InputError);
  CHECK_THROWS_WITH_AS(field.set(job, "adamw:fusd"), doctest::Contains("adamw:fused"), InputError);
}

TEST_CASE("an optimizer gets its defaults for what is not given, and refuses options of others by name") {
  const OptimizerOptions options = complete_options({.learning_rate = 0.5, .values = {{"beta2", 0.25}}}, "adamw");
  CHECK(options.learning_rate == 0.5);
  CHECK(options["beta1"] == 0.9);
  CHECK(options["beta2"] == 0.25);
  CHECK(options["eps"] == 1e-8);
  CHECK(options["weight-decay"] == 0.01);
  CHECK_THROWS_WITH_AS(complete_options({.values = {{"dampening", 0.5}}}, "adamw"),
                       "--dampening: --optimizer adamw has no such option (it has --beta1, --beta2, --eps, "
                       "--weight-decay)",
                       InputError);
  CHECK_THROWS_WITH_AS(complete_options({.values = {{"eps", 2}}}, "adamw"),
                       doctest::Contains("--eps: 2 is more than 1"), InputError);
  CHECK_THROWS_WITH_AS(complete_options({.values = {{"update-clip", 0.5}}}, "adafactor"),
                       doctest::Contains("--update-clip: 0.5 is less than 1"), InputError);
}

TEST_CASE("each option of an optimizer is one flag of a run, which says whose it is") {
  for (const OptimizerFlag& option : optimizer_flags()) {
    const auto flags = run_flags();
    CHECK(std::ranges::count(flags, option.flag, &RunFlag::name) == 1);
  }
  const RunOptions options = parse_run_flags(std::vector<std::string>{"--plan", "plan.json", "--beta1", "0.5"});
  CHECK(options.train.optimizer.values.size() == 1);
  CHECK(options.train.optimizer["beta1"] == 0.5);
  CHECK_THROWS_AS(parse_run_flags(std::vector<std::string>{"--plan", "plan.json", "--beta1", "1"}), InputError);
}

TEST_CASE("help of an optimizer's option names the optimizers of each default together") {
  const auto help = [](std::string_view option) {
    return std::ranges::find(optimizer_flags(), option, &OptimizerFlag::option)->help;
  };
  CHECK(help("momentum") == "Option of --optimizer sgd (default: 0.9)");
  CHECK(help("beta2").find("adamw, adamw-8bit,") != std::string::npos);
  CHECK(help("beta2").ends_with("adamw-stochastic (default: 0.999); lion (default: 0.99)"));
  CHECK(help("weight-decay").ends_with(" (default: 0.01); sgd, lion, adafactor (default: 0)"));
}

}  // namespace vramfit
