// What most sources of cli/ include.
#pragma once

#include <CLI/CLI.hpp>

#include "cmake/std_pch.h"
