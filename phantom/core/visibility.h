// Stand-ins are built with hidden symbols; these are the ones that others see.
#pragma once

/// A function that the real library exports, written by hand.
#define PHANTOM_EXPORT extern "C" __attribute__((visibility("default")))
/// A part of core that the stand-ins use.
#define PHANTOM_CORE __attribute__((visibility("default")))
