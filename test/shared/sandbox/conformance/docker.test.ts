/** With `inject('docker')` the daemon is found, or started, before these tests. */
import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has its own container, so a run after each attack has no benefit and costs a second of CPU time.
describeSandbox('docker', { isAliveAsked: false, each: 12 })
