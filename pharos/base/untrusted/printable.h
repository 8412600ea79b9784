// Text that others have written (a log, a record, a variable) on its way to a person's terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pharos::base {

/// `text` on one line: control characters (of ASCII and U+0080 to U+009F) and bytes that are no UTF-8 as "\n", "\t",
/// "\r" or "\x1b", so that nothing in it moves the cursor, forges a line or changes the terminal.
std::string printable(std::string_view text);

/// At most `most_bytes` bytes of `text`, cut between characters with "…" behind them.
std::string shortened(std::string_view text, std::size_t most_bytes);

}  // namespace pharos::base
