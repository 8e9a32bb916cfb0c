// JsonReader, for the configurations of families.
#pragma once
#include "core/json.h"
