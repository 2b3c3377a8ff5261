// Lists the settings that the MPI library knows. Called by mpi_library.cpp.
#include "mpi/call.hpp"
#include "mpi/mpi_library.hpp"

#include <array>

namespace nearstep::mpi {

std::vector<std::string> settings_in_force() {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided));
    int count = 0;
    check(MPI_T_cvar_get_num(&count));
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) {
        std::array<char, 256> name{};
        auto length = static_cast<int>(name.size());
        int no_description = 0;
        int verbosity = 0;
        int bind = 0;
        int scope = 0;
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_T_enum values = MPI_T_ENUM_NULL;
        // Fails for those that were withdrawn.
        if (MPI_T_cvar_get_info(i, name.data(), &length, &verbosity, &type, &values, nullptr,
                                &no_description, &bind, &scope) == MPI_SUCCESS) {
            names.emplace_back(name.data());
        }
    }
    check(MPI_T_finalize());
    return names;
}

}  // namespace nearstep::mpi
