// Figures of configuration files, which stand there with their origin: [0.65, "judgement"].
#pragma once

#include <string>
#include <string_view>

#include "base/json/json_value.h"

namespace vramfit {

/// The member `key` of an object. Throws InputError "WHERE: KEY: missing".
const JsonValue& json_member(const JsonValue& object, std::string_view key, const std::string& where);

/// The number of the member `key`, which is [number, origin]. Throws InputError "WHERE: KEY: ..." unless it is positive
/// and its origin is one of the keys of `origins`.
double sourced_figure(const JsonValue& object, std::string_view key, const JsonValue& origins,
                      const std::string& where);

}  // namespace vramfit
