import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has its own interpreter in its own thread. A run after each attack has no benefit and costs half a second of CPU time.
describeSandbox('wasm', { isAliveAsked: false, each: 4 })
