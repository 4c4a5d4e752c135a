#include "bonfire/data/jpeg_errors.h"

#include <jerror.h>

namespace bonfire::data {

namespace {

[[noreturn]] void jump_back(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->text);
  std::longjmp(errors->back, 1);
}

// Bytes too many and odd headers do no harm.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC: jump_back(info);
    default: break;
  }
}

void print_nothing(j_common_ptr) {}

void count_scans(j_common_ptr info) {
  constexpr int kMost = 500;
  if (!info->is_decompressor || reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMost) return;
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  std::snprintf(errors->text, sizeof errors->text, "more than %d scans", kMost);
  std::longjmp(errors->back, 1);
}

}  // namespace

jpeg_error_mgr* listen(JpegErrors& errors) {
  jpeg_std_error(&errors.base);
  errors.base.error_exit = jump_back;
  errors.base.emit_message = on_message;
  errors.base.output_message = print_nothing;
  return &errors.base;
}

void limit_scans(jpeg_decompress_struct& info, JpegErrors& errors) {
  errors.progress = {};
  errors.progress.progress_monitor = count_scans;
  info.progress = &errors.progress;
}

}  // namespace bonfire::data
