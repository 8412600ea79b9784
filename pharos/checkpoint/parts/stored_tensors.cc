#include "pharos/checkpoint/parts/stored_tensors.h"

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/parts/rectangle.h"

namespace pharos::checkpoint {

void throw_damaged(const std::filesystem::path& folder, const std::vector<std::string>& problems) {
  throw base::UserError({.what = "The checkpoint '" + folder.string() + "' is damaged.",
                         .where = folder.string(),
                         .why = base::join(problems, "; "),
                         .fix = "Load an earlier iteration with checkpoint.ckpt_step, or copy this one again."});
}

const SafetensorsFile& StoredTensors::open(const std::string& name) {
  auto& file = files_[name];
  if (file == nullptr) {
    const std::string problem = compare_file(*manifest_.find_file(name), folder_, with_checksums_);
    if (!problem.empty()) throw_damaged(folder_, {problem});
    file = std::make_unique<SafetensorsFile>(folder_ / name);
  }
  return *file;
}

const std::string& StoredTensors::entry_of(const StoredTensor& stored, const StoredSlice& slice) {
  const std::string& name = slice.entry.empty() ? stored.name : slice.entry;
  const TensorEntry* entry = open(slice.file).header().find(name);
  if (entry == nullptr || entry->shape != slice.shape || entry->type != stored.type)
    throw_damaged(folder_, {"'" + slice.file + "' does not hold '" + name + "' as the manifest describes it"});
  return name;
}

void StoredTensors::copy_to(const StoredTensor& stored, const std::vector<std::int64_t>& offset,
                            const at::Tensor& target) {
  for (const StoredSlice& slice : stored.slices) {
    const auto common = intersection({offset, target.sizes().vec()}, {slice.offset, slice.shape});
    if (!common) continue;
    std::vector<std::int64_t> in_slice = common->begin;
    at::Tensor part = target;
    for (std::size_t axis = 0; axis < in_slice.size(); ++axis) {
      in_slice[axis] -= slice.offset[axis];
      part = part.narrow(static_cast<std::int64_t>(axis), common->begin[axis] - offset[axis], common->shape[axis]);
    }
    open(slice.file).copy_to(entry_of(stored, slice), in_slice, part);
  }
}

}  // namespace pharos::checkpoint
