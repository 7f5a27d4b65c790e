// What most sources of executor/ include; sources still include what they use, so that they compile without this.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
