// What a program's libraries need of GPU libraries and no library defines, as with a PyTorch that is newer than the
// stand-ins.
#pragma once

struct link_map;

namespace vramfit::phantom {

/// A library was mapped into the program. Version nodes that it asks of stand-ins need not exist.
void object_opened(link_map* object);
void object_closed(const link_map* object);

/// All libraries of this dlopen are mapped, and none of their references is resolved: each that leads nowhere, and is
/// of a GPU library by its name, leads to a function that returns the library's "not supported" and is counted by its
/// name.
void objects_complete();

/// Whether a library of this name has a stand-in. Defined in audit.cpp.
bool has_stand_in(const char* name);

}  // namespace vramfit::phantom
