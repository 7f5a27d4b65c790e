// Values of job fields as other tools and people write them, read as ours: fp16, flash_attention_2, 8k, true.
#pragma once

#include <string>
#include <string_view>

#include "job/fields/job_fields.h"

namespace vramfit {

/// In lower case, with '-' for '_'.
std::string folded_word(std::string_view text);

/// `value` as the field's own reader takes it; unchanged when nothing here knows it. Case and '_' do not matter.
std::string as_known_value(const JobField& field, std::string_view value);

}  // namespace vramfit
