# The imported targets of librendezvous, for the installed package and for the source tree:
#   rendezvous::rendezvous   the shared library
#   rendezvous::static       the static library
# RENDEZVOUS_INCLUDE_DIR and RENDEZVOUS_LIBRARY_DIR say where the files are, RENDEZVOUS_SERIES is the number of the soname.

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "librendezvous runs on Linux only, and this build is for ${CMAKE_SYSTEM_NAME}")
endif()
if(NOT TARGET rendezvous::rendezvous)
  add_library(rendezvous::rendezvous SHARED IMPORTED GLOBAL)
  set_target_properties(rendezvous::rendezvous PROPERTIES
    IMPORTED_LOCATION "${RENDEZVOUS_LIBRARY_DIR}/librendezvous.so"
    IMPORTED_SONAME "librendezvous.so.${RENDEZVOUS_SERIES}"
    INTERFACE_INCLUDE_DIRECTORIES "${RENDEZVOUS_INCLUDE_DIR}")
  add_library(rendezvous::static STATIC IMPORTED GLOBAL)
  set_target_properties(rendezvous::static PROPERTIES
    IMPORTED_LOCATION "${RENDEZVOUS_LIBRARY_DIR}/librendezvous.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES C
    INTERFACE_INCLUDE_DIRECTORIES "${RENDEZVOUS_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "pthread;dl;m"
    # Without it a program has all of the library.
    INTERFACE_LINK_OPTIONS "LINKER:--gc-sections")
  # A project of C alone may not name a standard of C++.
  get_property(rendezvous_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if("CXX" IN_LIST rendezvous_languages)
    set_target_properties(rendezvous::rendezvous rendezvous::static PROPERTIES
      INTERFACE_COMPILE_FEATURES cxx_std_17)
  endif()
  unset(rendezvous_languages)
endif()
