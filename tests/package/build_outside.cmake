# cmake -D build=BUILD -D work=EMPTY -D compiler=CXX -D generator=GENERATOR -D toolchain=FILE_OR_NOTHING -P build_outside.cmake
file(REMOVE_RECURSE ${work})
set(strict COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${work}/prefix ${strict})
if(NOT EXISTS ${work}/prefix/share/doc/bonfire/LICENSE)
  message(FATAL_ERROR "the licence is not installed")
endif()
# The sources are copied so that no header of the tree is near.
file(COPY ${CMAKE_CURRENT_LIST_DIR}/CMakeLists.txt ${CMAKE_CURRENT_LIST_DIR}/../../examples/custom_op.cpp
     DESTINATION ${work}/source)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${work}/source -B ${work}/build -G ${generator}
                        -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_TOOLCHAIN_FILE=${toolchain}
                        -D CMAKE_PREFIX_PATH=${work}/prefix -D CMAKE_BUILD_TYPE=Release ${strict})
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/build ${strict})
execute_process(COMMAND ${work}/build/outside COMMAND_ERROR_IS_FATAL ANY)
