/**
 * Selects the test files of a run. `npm test` runs the short tier: end-to-end calls, units, third-party SDKs and the broker suite on one small Kafka.
 * `npm run test:all` also runs the files that need a model, Postgres, containers, fleets of processes or minutes. A new file is in the short tier,
 * unless it is added to {@link LONG}.
 */
import { existsSync, readFileSync } from 'node:fs'
import { relative } from 'node:path'
import { BaseSequencer, parseCLI, type TestSpecification } from 'vitest/node'

export const ALL = 'test/**/*.test.ts'

/** Files that `npm test` leaves out. */
const LONG = [
  // Tests that start fleets of processes, and that simulate crashes and faults.
  'test/{burst,event-loop,fleet,leaks,outage,poison,rolling-restart,s3-fleet,scaling,traces,upgrade}.test.ts',
  // Tests that start processes of all roles, and promtool or Prometheus.
  'test/deploy/{alerts,dashboards,observability}.test.ts',
  // Starts three network namespaces with Kafka, Postgres, S3 and HAProxy.
  'test/deploy/three-machines.test.ts',
  'test/chaos/{brokers,chaos,outages,single-process}.test.ts',
  'test/simulation/**',
  'test/shared/jobs/protocol-model.test.ts',
  'test/services/ingress/admin/keys.test.ts',
  'test/services/ingress/body/body-budget.test.ts',
  'test/shared/broker/{kafka,kafka-limits,kafka-modes,kafka-secure,kafka-start,kafka-topics}.test.ts',
  'test/services/scheduler/dead-letter.test.ts',
  // Tests of the command line, which start one process per call.
  'test/services/cli/**',
  // Tests that need a browser.
  'test/services/console/**',
  'test/services/ingress/pages/search.test.ts',
  'test/data-dir.test.ts',
  // Tests that need Postgres.
  'test/shared/{store/{store,family,operator,partitions,pooler,postgres,plans,turns},blobs/{blobs,fleet-blobs},keys/keys,capacity/fleet-counts,usage/ledger}.test.ts',
  'test/shared/jobs/worker/compose.test.ts',
  'test/services/ingress/responses/{fleet,hosted}.test.ts',
  'test/services/ingress/jobs/{api,bad-input,embedded,events,idempotency,turns}.test.ts',
  'test/services/ingress/callers/{fleet-limits,keys,limits,revocation}.test.ts',
  // Tests that need models, with their weights and libraries.
  'test/shared/local-server/**',
  'test/shared/engines/{chat-engine,embedded,long-prompts,upstream-katan,upstream-words}.test.ts',
  'test/shared/engines/llama/{prompt-cache,template}.test.ts',
  'test/shared/engines/transcription/engines.test.ts',
  'test/services/transcription/{diarize,transcription}.test.ts',
  'test/services/embeddings/{embeddings,local,input-semaphore}.test.ts',
  'test/services/inference/preload.test.ts',
  // Tests that install coding agents from npm.
  'test/sdk/agents.test.ts',
  // Tests that start sandboxes.
  'test/shared/sandbox/{docker,many-runs,scan,zygote}.test.ts',
  'test/shared/sandbox/{conformance/**,wasm/wasm.test.ts}',
  'test/services/code/**',
  'test/services/research/{fleet,research}.test.ts',
  'test/readme.test.ts',
  'test/docs/{commands,events}.test.ts',
  'test/services/ingress/openapi/schemathesis.test.ts',
]

/** Files that take about a minute, longest first. A run starts with them, so that none runs alone at the end. */
const LONGEST = [
  'test/docs/commands.test.ts',
  'test/chaos/brokers.test.ts',
  'test/chaos/outages.test.ts',
  'test/shared/broker/kafka.test.ts',
  'test/services/console/screens.test.ts',
  'test/scaling.test.ts',
  'test/simulation/simulation.test.ts',
  'test/chaos/chaos.test.ts',
  'test/services/transcription/transcription.test.ts',
  'test/services/cli/cli.test.ts',
  'test/services/code/fleet.test.ts',
  'test/services/research/fleet.test.ts',
  'test/fleet.test.ts',
  'test/outage.test.ts',
  'test/services/console/playground.test.ts',
  'test/shared/sandbox/conformance/zygote.test.ts',
  'test/shared/local-server/speakers.test.ts',
  'test/shared/store/plans.test.ts',
  'test/services/ingress/responses/fleet.test.ts',
  'test/services/cli/table-batch.test.ts',
  'test/s3-fleet.test.ts',
  'test/shared/broker/kafka-topics.test.ts',
  'test/shared/engines/chat-engine.test.ts',
  'test/shared/local-server/speech.test.ts',
  'test/services/ingress/jobs/events.test.ts',
  'test/shared/sandbox/many-runs.test.ts',
  'test/shared/sandbox/conformance/docker.test.ts',
  'test/shared/sandbox/conformance/wasm.test.ts',
  'test/services/code/attacks.test.ts',
  'test/event-loop.test.ts',
  'test/services/ingress/jobs/api.test.ts',
  'test/shared/store/store.test.ts',
  'test/shared/store/postgres.test.ts',
  'test/shared/local-server/local-server.test.ts',
  'test/burst.test.ts',
  'test/sdk/agents.test.ts',
  'test/sdk/python.test.ts',
  'test/services/ingress/bad-input.test.ts',
  'test/end-to-end.test.ts',
  'test/sdk/vercel.test.ts',
  'test/sdk/openai.test.ts',
  'test/shared/broker/broker.test.ts',
  // The SDK files run last. On a new machine each of them waits until the first one has installed the Python environments.
  'test/sdk/embeddings-python.test.ts',
  'test/sdk/transcription-python.test.ts',
]

/** Orders the test files of a run: those of {@link LONGEST} first, the others in the order of vitest. */
export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = (file: TestSpecification) => {
      const at = LONGEST.findIndex((path) => file.moduleId.endsWith(path))
      return at < 0 ? LONGEST.length : at
    }
    return (await super.sort(files)).toSorted((a, b) => place(a) - place(b))
  }
}

/**
 * Returns the files that a run leaves out. If the command line names files, then none are left out. With `--mode all`, files that already have
 * results in SLUICE_TEST_DONE (a JSON report of vitest) are left out, so that an interrupted run can continue. Otherwise the files of {@link
 * LONG} are left out.
 */
export function leftOut(mode: string): string[] {
  if (namedFiles().length > 0) return []
  return mode === 'all' ? done(process.env.SLUICE_TEST_DONE) : LONG
}

/** Parts of file paths that were given on the command line, such as `end-to-end` and `ws/` in `npm test -- end-to-end ws/`. */
export function namedFiles(): string[] {
  return parseCLI(['vitest', ...process.argv.slice(2)], { allowUnknownOptions: true }).filter
}

function done(report: string | undefined): string[] {
  if (!report || !existsSync(report)) return []
  const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as { testResults: { name: string }[] }
  return testResults.map(({ name }) => relative(process.cwd(), name))
}
