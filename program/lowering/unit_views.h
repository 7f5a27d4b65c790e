// Where the parameters of a unit lie in its storages, as views.
#pragma once

#include <list>
#include <utility>
#include <vector>

#include "job/job.h"
#include "program/lowering/views.h"
#include "program/stages/units_layout.h"

namespace vramfit::program {

class UnitViews {
 public:
  /// Of a unit. Lists have a part for each of its parameters, in order; those named `shards` and `own` go storage by
  /// storage.
  struct Numbers {
    std::vector<int> shards;      // by storage: the rank's rows of each
    int gathered = -1, own = -1;  // the gathered storage: each whole; the rank's rows of it
    int kept = -1, slices = -1;   // the kept slice; the same part of the gathered storage
    int trained = -1;             // the shard: all that is trained, as one list
    int all_gradients = -1;       // of that, as one list of the gradients' dtype
    int beside_scaled = -1;       // what of that is in the storage after the one whose numbers have scales
    // Of matrices that are codes on the card: their masters, and the codes; as one list, all codes. Of the others: each
    // in what the card has of the shard, and all of them in the shard, as one list.
    int masters = -1, codes = -1, all_codes = -1, plain = -1, plain_in_shard = -1;
    // By parameter: its rows in the gradient shard, or among the codes of gradients; the rank's rows of its whole
    // gradient, in the reduce dtype, or all of that with one shard; its scale, or that of its gradient in FP8.
    std::vector<int> gradients, own_rows, scales;
    // By parameter: all ranks' scales of its parts that are sent, among those of all parameters.
    std::vector<int> sent_scales;
    // This replica's part of what all have of those.
    int codes_of_replica = -1, scales_of_replica = -1;
  };

  UnitViews(Views& views, const UnitLayout& layout, const Coords& coords)
      : views_(views), layout_(layout), coords_(coords) {}
  /// Units that are laid out alike share them. The reference stays valid.
  const Numbers& of(const Unit& unit);

 private:
  void add_coded(const Unit& unit, Numbers& made);
  Numbers made_for(const Unit& unit);

  Views& views_;
  const UnitLayout& layout_;
  Coords coords_;
  std::list<std::pair<const Unit*, Numbers>> known_;
};

}  // namespace vramfit::program
