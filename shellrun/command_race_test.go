//go:build race

package shellrun

// raceFactor is how much more memory things take under the race detector.
const raceFactor = 4
