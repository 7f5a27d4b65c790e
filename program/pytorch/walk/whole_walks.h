// Walks through each micro-batch of both steps, to compare what is folded with: they take a multiple of the time.
#pragma once

namespace vramfit::eager {

/// While one lives, walks of its thread go through every micro-batch by itself.
class WholeWalks {
 public:
  WholeWalks() { wanted = true; }
  ~WholeWalks() { wanted = false; }
  WholeWalks(const WholeWalks&) = delete;
  WholeWalks(WholeWalks&&) = delete;
  WholeWalks& operator=(const WholeWalks&) = delete;
  WholeWalks& operator=(WholeWalks&&) = delete;

  static bool are_wanted() { return wanted; }

 private:
  static inline thread_local bool wanted = false;
};

}  // namespace vramfit::eager
