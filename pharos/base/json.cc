#include "pharos/base/json.h"

#include "pharos/base/error.h"
#include "pharos/base/file.h"

namespace pharos::base {

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw UserError({.what = "'" + where + "' is not valid JSON.",
                     .where = where + ", byte " + std::to_string(error.byte),
                     .why = error.what(),
                     .fix = "Correct the file or fetch it again."});
  } catch (const nlohmann::json::exception& error) {  // a number beyond a double
    throw UserError({.what = "'" + where + "' holds JSON that cannot be read.",
                     .where = where,
                     .why = error.what(),
                     .fix = "Correct the file or fetch it again."});
  }
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_regular_file(path), path.string());
}

}  // namespace pharos::base
