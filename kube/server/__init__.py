"""HTTP as all our services serve it: with limits of our own, which strangers meet first."""
