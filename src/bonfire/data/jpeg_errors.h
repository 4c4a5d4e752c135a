#pragma once
// How libjpeg reports. An error must not return, and C++ exceptions must not cross C code: it jumps back into the
// function that called, which throws.
//
//   JpegErrors errors;
//   info.err = listen(errors);
//   if (setjmp(errors.back) != 0) throw_error<DataError>("{}", errors.text);
//   jpeg_read_header(&info, TRUE);

#include <csetjmp>
#include <cstddef>
#include <cstdio>
// libjpeg's headers expect the two above.
#include <jpeglib.h>

namespace bonfire::data {

struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg knows only this
  jpeg_progress_mgr progress;
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

// Damage is an error too, though libjpeg calls it a warning and goes on with grey.
jpeg_error_mgr* listen(JpegErrors& errors);

// A progressive file may refine its picture as often as it likes, which costs a pass over all of it each time: more
// than 500 are an error.
void limit_scans(jpeg_decompress_struct& info, JpegErrors& errors);

}  // namespace bonfire::data
