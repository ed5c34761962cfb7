package proctree

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestOOMScoreReachesWhatWasForkedBefore(t *testing.T) {
	s := start(t, `bash -c 'sleep 98.3 & echo up; wait' & wait`)
	s.waitUp()
	score, err := ChildOOMScore()
	if err != nil {
		t.Fatal(err)
	}
	setOOMScoreAdj(s.PID(), score)
	members := s.Members()
	if len(members) < 3 {
		t.Errorf("members %v", members)
	}
	for _, pid := range members {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil || strings.TrimSpace(string(text)) != fmt.Sprint(score) {
			t.Errorf("process %d: %q %v, want %d", pid, text, err, score)
		}
	}
	if err := s.Kill(t.Context(), 0); err != nil {
		t.Error(err)
	}
}
