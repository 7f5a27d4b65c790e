// The kinds of failure that users can run into, and the exit code of each (listed in README.md).
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace vramfit {

enum class ExitCode : int {
  done = 0,          // fits, or done
  failed = 1,        // failed, or not modelled
  usage = 2,         // flags, job file, plan file
  does_not_fit = 3,  // predicted
  no_plan = 4,
  model = 5,             // model, weights, network or authorization
  out_of_memory = 6,     // when run
  outside_tolerance = 7  // prediction against measurement
};

/// Anything reported to the user as one line: what was wrong, where (file, key, line), what to do.
/// Thrown anywhere, caught only in main(), which prints it and exits with `code`.
struct Error : std::runtime_error {
  Error(ExitCode exit_code, const std::string& message) : std::runtime_error(message), code(exit_code) {}
  ExitCode code;
};

/// Wrong flags, job file or plan file: exit 2.
struct InputError : Error {
  explicit InputError(const std::string& message) : Error(ExitCode::usage, message) {}
};

/// Wrong model id, config.json, weights, network or authorization: exit 5.
struct ModelError : Error {
  explicit ModelError(const std::string& message) : Error(ExitCode::model, message) {}
};

/// A model of a family or class that isn't described here; `name` is its model_type. Its tensors can still be listed.
struct UnknownFamily : ModelError {
  UnknownFamily(const std::string& message, std::string model_type)
      : ModelError(message), name(std::move(model_type)) {}
  std::string name;
};

/// A failure of the machine (a file that can't be written, a rank that died): exit 1.
struct FaultError : Error {
  explicit FaultError(const std::string& message) : Error(ExitCode::failed, message) {}
};

/// A feature without rules; `feature` is its name, printed as `not_modelled: NAME`: exit 1.
struct NotModelled : Error {
  explicit NotModelled(const std::string& feature)
      : Error(ExitCode::failed, "not modelled: " + feature), feature_name(feature) {}
  std::string feature_name;
};

}  // namespace vramfit
