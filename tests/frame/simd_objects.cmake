# cmake -D objects="A.o;B.o" -P simd_objects.cmake
# Files for one instruction set must have no global constructors: those run before the processor is asked what it can do.
foreach(object IN LISTS objects)
  if(object MATCHES "/backend/cpu/.*_(avx2|avx512|avx512bf16|amx|neon|neonbf16)\\.cpp\\.o$")
    execute_process(COMMAND readelf -SW ${object} OUTPUT_VARIABLE sections COMMAND_ERROR_IS_FATAL ANY)
    if(sections MATCHES "\\.init_array")
      message(SEND_ERROR "${object} has a global constructor; move it into a file without instruction-set flags")
    endif()
  endif()
endforeach()
