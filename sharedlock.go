package checkpointdb

// lockState is what came of lockShared.
type lockState int

const (
	lockUnknown lockState = iota // no lock, and whether one is held cannot be told
	lockHeld
	lockBusy // a store has the file open for writing
)
