"""The atlas: public tables of runs, judged by the estimators for own runs."""
