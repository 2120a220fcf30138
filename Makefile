# Thin: the commands themselves stand in scripts/.
.PHONY: check full here readme

check: ; scripts/check
full:  ; scripts/check --full
here:  ; scripts/check --here
readme: ; scripts/paste-readme
