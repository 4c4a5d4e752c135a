# What was found and what was left out, told once at the end of the configuration.
function(bonfire_summary part state)
  set_property(GLOBAL APPEND_STRING PROPERTY bonfire_summary "\n--   ${part}: ${state}")
endfunction()

function(bonfire_print_summary)
  get_property(lines GLOBAL PROPERTY bonfire_summary)
  message(STATUS "Bonfire ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE} for ${CMAKE_SYSTEM_PROCESSOR}${lines}")
endfunction()
