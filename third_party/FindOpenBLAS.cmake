# OpenBLAS built on OpenMP: inside a parallel region its calls stay on the calling thread, which the CPU ops rely on.
find_path(OpenBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-openmp x86_64-linux-gnu/openblas-openmp)
find_library(OpenBLAS_LIBRARY openblas PATH_SUFFIXES openblas-openmp x86_64-linux-gnu/openblas-openmp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBLAS REQUIRED_VARS OpenBLAS_LIBRARY OpenBLAS_INCLUDE_DIR)
if(OpenBLAS_FOUND AND NOT TARGET OpenBLAS::OpenBLAS)
  add_library(OpenBLAS::OpenBLAS UNKNOWN IMPORTED)
  set_target_properties(OpenBLAS::OpenBLAS PROPERTIES
    IMPORTED_LOCATION ${OpenBLAS_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${OpenBLAS_INCLUDE_DIR})
endif()
