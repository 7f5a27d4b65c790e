// Names by which programs tell cards apart.
#pragma once

#include <array>
#include <string>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

// By a card's place in the node: what CUDA_VISIBLE_DEVICES leaves out has a name, too.
/// The same for all processes of the node. Printed, it ends in the place in decimal digits, which CUDA_VISIBLE_DEVICES
/// is read by.
PHANTOM_CORE std::array<unsigned char, 16> uuid_of_place(int place);
/// "GPU-00000000-0000-0000-0000-000000000003", as nvidia-smi prints it.
PHANTOM_CORE std::string uuid_text_of_place(int place);
/// "0000:04:00.0"; the bus is the place + 1.
PHANTOM_CORE std::string pci_bus_id_of_place(int place);

}  // namespace vramfit::phantom
