// Package checkpointdb keeps the checkpoints of coding agents.
package checkpointdb
