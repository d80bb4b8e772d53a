/** With `inject('docker')` the daemon is found, or started, before these tests. */
import { describeSandbox } from '../support/sandbox-conformance.ts'
import { isOwn } from '../support/sandbox-corpus.ts'

// A container costs a second of processor time, the whole corpora ten minutes on two cores: before a release.
const isWhole = process.env.SANDBOX_CORPUS === 'whole'

describeSandbox('docker', { isAliveAsked: false, ...(isWhole ? {} : { corpus: isOwn }) })
