/** This file must contain the text `inject('docker')`. The test setup finds or starts a Docker daemon only if a test file contains this text. */
import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has its own container. The additional run after each attack is switched off, because it would prove nothing and cost a second of CPU
// time.
describeSandbox('docker', { isAliveAsked: false, each: 12 })
