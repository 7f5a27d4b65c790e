// The rows that cmake/EmbedCatalog.cmake writes from catalog/*.json when one of them changes.
#pragma once

#include <span>

#include "model_specs/catalog.h"

namespace vramfit {

std::span<const CatalogEntry> catalog_data();

}  // namespace vramfit
