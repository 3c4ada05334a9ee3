//! Chain data as Parquet files, for analysts.
