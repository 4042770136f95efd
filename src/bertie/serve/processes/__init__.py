"""A server of several processes: a supervisor, fronts that speak HTTP, engines that have the models, memory between."""
