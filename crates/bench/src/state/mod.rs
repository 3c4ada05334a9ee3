//! Races between state stores on the stand-alone workload of the LVMT paper (section 6).
