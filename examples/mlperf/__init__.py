"""MLPerf: public tables of examples to a target, judged by the estimators for own runs."""
