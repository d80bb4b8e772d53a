/** Runs once before all tests. Starts the shared Kafka and Postgres if a test file uses them, and stops them at the end. */
import { readFile } from 'node:fs/promises'
import type { TestProject } from 'vitest/node'
import { findKafka } from './processes/kafka.ts'
import { findPostgres } from './processes/postgres.ts'
import { findDocker } from './sandbox/docker.ts'
import { namedFiles } from './tiers.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** `host:port` of a real Kafka. Null if there is none: then tests that need Kafka are skipped. */
    kafka: string | null
    /** URL of a real Postgres. Null if there is none: then tests that need Postgres are skipped. */
    postgres: string | null
    /** Path of the socket of a Docker daemon. Null if there is none: then tests that need Docker are skipped, in CI too. */
    docker: string | null
  }
}

/** Provides the values that tests read with vitest's `inject`. If CI=true, then a missing Kafka or Postgres is an error. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const texts = await testTexts(project)
  const needs = (name: string) => texts.some((text) => text.includes(`inject('${name}')`))
  // The services start concurrently, because each start mostly waits for a process.
  const [kafkaFound, postgresFound, docker] = await Promise.all([
    needs('kafka') ? findKafka() : undefined,
    needs('postgres') ? findPostgres() : undefined,
    needs('docker') ? findDocker() : undefined,
  ])
  const kafka = found('Kafka', kafkaFound)
  const postgres = found('Postgres', postgresFound)
  if (typeof docker === 'string') process.stderr.write(`Tests on Docker are skipped: ${docker}\n`)
  const dockerHere = typeof docker === 'string' ? undefined : docker
  project.provide('kafka', kafka?.address ?? null)
  project.provide('postgres', postgres?.url ?? null)
  project.provide('docker', dockerHere?.socketPath ?? null)
  return async () => {
    await Promise.all([kafka?.stop(), postgres?.stop(), dockerHere?.stop()])
  }
}

/** Source texts of the test files of this run. Kafka, for example, starts only if one of these texts contains `inject('kafka')`. */
async function testTexts(project: TestProject): Promise<string[]> {
  const { testFiles } = await project.globTestFiles(namedFiles())
  return await Promise.all(testFiles.map((file) => readFile(file, 'utf8')))
}

function found<T extends object>(name: string, service: T | string | undefined): T | undefined {
  if (typeof service !== 'string') return service
  if (process.env.CI === 'true') throw new Error(`The tests on ${name} cannot run: ${service}`)
  process.stderr.write(`Tests on ${name} are skipped: ${service}\n`)
  return undefined
}
