// Names by which programs tell cards apart.
#pragma once

#include <array>
#include <string>

#include "executor/phantom/core/visibility.h"

namespace vramfit::phantom {

/// The same for all processes of the node.
PHANTOM_CORE std::array<unsigned char, 16> card_uuid(int card);
/// "GPU-00000000-0000-0000-0000-000000000000", as nvidia-smi prints it.
PHANTOM_CORE std::string card_uuid_text(int card);
/// "0000:01:00.0"
PHANTOM_CORE std::string card_pci_bus_id(int card);

}  // namespace vramfit::phantom
