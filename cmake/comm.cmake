# What ranks on several hosts talk through: Gloo (libgloo-dev) and MPI (libopenmpi-dev), each where it is found. A folder
# of src/bonfire/comm/ has a file for either case: NAME_group.cpp, or its twin NAME_group_absent.cpp.
find_package(Gloo CONFIG QUIET)
if(TARGET gloo)
  set(BONFIRE_HAVE_GLOO ON)
  bonfire_summary("Gloo" "${GLOO_VERSION}")
else()
  set(BONFIRE_HAVE_GLOO OFF)
  bonfire_summary("Gloo" "left out: not found (libgloo-dev)")
endif()

set(MPI_CXX_SKIP_MPICXX ON) # its C++ bindings are long gone from the standard
find_package(MPI COMPONENTS CXX QUIET)
if(MPI_CXX_FOUND)
  set(BONFIRE_HAVE_MPI ON)
  bonfire_summary("MPI" "${MPI_CXX_VERSION}")
else()
  set(BONFIRE_HAVE_MPI OFF)
  bonfire_summary("MPI" "left out: not found (libopenmpi-dev, openmpi-bin)")
endif()

# Takes out of a list variable the file that does not fit what was found.
function(bonfire_choose_comm_sources sources_variable)
  set(chosen ${${sources_variable}})
  foreach(name gloo mpi)
    string(TOUPPER ${name} upper_name)
    if(BONFIRE_HAVE_${upper_name})
      list(FILTER chosen EXCLUDE REGEX "/comm/${name}/${name}_group_absent\\.cpp$")
    else()
      list(FILTER chosen EXCLUDE REGEX "/comm/${name}/(${name}_group|peer_sockets|proven_context)\\.cpp$")
    endif()
  endforeach()
  set(${sources_variable} ${chosen} PARENT_SCOPE)
endfunction()
