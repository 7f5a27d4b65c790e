// What most tests include.
#pragma once

#include <doctest/doctest.h>

#include "cmake/std_pch.h"
