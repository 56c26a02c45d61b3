# The ROS 2 wheels from PyPI export targets that name include directories of the machine they were
# built on. Drop those that do not exist here, once all targets are known. Nothing in the environment
# is patched. Used as -DCMAKE_PROJECT_kairos_ros_INCLUDE=<this file>; an installed ROS 2 does not need it.
function(kairos_drop_stale_includes)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(dirs ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(NOT dirs)
      continue()
    endif()
    set(kept "")
    foreach(dir IN LISTS dirs)
      if(NOT dir MATCHES "^/opt/" OR EXISTS "${dir}")
        list(APPEND kept "${dir}")
      endif()
    endforeach()
    set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
  endforeach()
endfunction()
cmake_language(DEFER CALL kairos_drop_stale_includes)

# Many small generated sources include the same headers: compile some of them together, but for those that
# define the same static names, or specialise what another one of them has used.
set(CMAKE_UNITY_BUILD ON)
cmake_language(DEFER CALL set_target_properties ${PROJECT_NAME}__rosidl_generator_c
  ${PROJECT_NAME}__rosidl_typesupport_introspection_cpp PROPERTIES UNITY_BUILD OFF)
