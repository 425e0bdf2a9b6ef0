package checkpointdb

import (
	"context"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Fork implements [Forker].
func (s *Store) Fork(ctx context.Context, w Writer, req ForkRequest) (Checkpoint, error) {
	const op = "fork"
	for _, err := range []error{
		req.SourceThreadID.Validate(), req.SourceCheckpointID.Validate(),
		req.DestinationThreadID.Validate(), req.DestinationCheckpointID.Validate(), w.ThreadID.Validate(),
		ValidateTime("createdAt", req.CreatedAt),
	} {
		if err != nil {
			return Checkpoint{}, withOp(op, err)
		}
	}
	if req.SourceThreadID == req.DestinationThreadID {
		return Checkpoint{}, &Error{Code: ErrForkSourceThreadMismatch, Op: op, Message: fmt.Sprintf("source and destination are the one thread %q", req.SourceThreadID)}
	}
	var v *version
	err := s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		p, ok, err := getPlace(tx, req.SourceCheckpointID)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Code: ErrForkSourceNotFound, Message: fmt.Sprintf("no checkpoint %q", req.SourceCheckpointID)}
		}
		if source, err := getThread(tx, req.SourceThreadID); err != nil {
			return err
		} else if source != p.thread {
			return &Error{Code: ErrForkSourceThreadMismatch, Message: fmt.Sprintf("checkpoint %q is not of thread %q", req.SourceCheckpointID, req.SourceThreadID)}
		}
		n, err := currentWriter(tx, w, req.DestinationThreadID, now)
		if err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		if len(h.live) > 0 || tx.Bucket(bucketTranscripts).Get(n.key()) != nil {
			return &Error{Code: ErrForkDestinationNotEmpty, Message: fmt.Sprintf("thread %q has checkpoints or a transcript", req.DestinationThreadID)}
		}
		if _, used, err := getPlace(tx, req.DestinationCheckpointID); err != nil {
			return err
		} else if used {
			return &Error{Code: ErrForkDestinationNotEmpty, Message: fmt.Sprintf("checkpoint %q exists", req.DestinationCheckpointID)}
		}
		source, err := loadVersion(tx, p, nil)
		if err != nil {
			return err
		}
		v = &version{record: &record{header: header{
			id: req.DestinationCheckpointID, threadID: req.DestinationThreadID,
			createdAt: req.CreatedAt.Round(0).UTC(), reason: ReasonForkRoot, source: req.SourceCheckpointID,
		}}, lists: source.lists}
		if err := s.appendVersion(tx, n, h, v); err != nil {
			return err
		}
		return putTranscript(tx, n, v.lists[sectionConversation])
	})
	if err != nil {
		return Checkpoint{}, err
	}
	return v.checkpoint()
}
