package jupyter

import "testing"

// TestCodeThatIsOnItsWayIsNotLost looks at a cell whose code the server has not taken yet: nothing can have come of it.
func TestCodeThatIsOnItsWayIsNotLost(t *testing.T) {
	answered := make(chan struct{})
	close(answered)
	r := newRun(nothing{}, "id")
	look := func() *loss {
		return new(conn).lookForEnd(t.Context(), &vigil{fence: answered, over: beginLooks}, r, KernelModel{ExecutionState: "idle"})
	}
	if l := look(); l != nil {
		t.Errorf("while it is sent: %v", l)
	}
	r.sent.Store(true)
	if look() == nil {
		t.Error("waits for ever for a cell that was lost")
	}
}

// TestWhatHappenedInTimeIsSeenLate waits, as after a long sleep of the machine, when the time is up and the cell has ended.
func TestWhatHappenedInTimeIsSeenLate(t *testing.T) {
	r := newRun(nothing{}, "id")
	close(r.began)
	r.finish(nil)
	for range 100 {
		if !waitFor(t.Context(), nil, r, -1) {
			t.Fatal("a cell that has ended goes on")
		}
	}
	r.done = make(chan struct{})
	for range 100 {
		if !waitFor(t.Context(), r.began, r, -1) {
			t.Fatal("a cell that has begun waits")
		}
	}
}
