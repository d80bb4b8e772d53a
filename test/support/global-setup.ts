/** Runs once before all tests: starts the Kafka they share, and stops it at the end. */
import { readFile } from 'node:fs/promises'
import type { TestProject } from 'vitest/node'
import { findKafka, type TestKafka } from './kafka.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** `host:port` of a real Kafka; null where there is none, and then the tests that need it are skipped. */
    kafka: string | null
  }
}

/** Gives the tests what they `inject`. With CI=true a missing Kafka is an error. */
export async function setup(project: TestProject): Promise<(() => Promise<void>) | undefined> {
  if (!(await needsKafka(project))) {
    project.provide('kafka', null)
    return undefined
  }
  const kafka = await findKafka()
  project.provide('kafka', addressOf(kafka))
  return typeof kafka === 'string' ? undefined : () => kafka.stop()
}

/** One file at a time is run often: only those that ask for Kafka should wait for it. */
async function needsKafka(project: TestProject): Promise<boolean> {
  const named = process.argv.filter((argument) => argument.endsWith('.test.ts'))
  const { testFiles } = await project.globTestFiles(named)
  const texts = await Promise.all(testFiles.map((file) => readFile(file, 'utf8')))
  return texts.some((text) => text.includes("inject('kafka')"))
}

function addressOf(kafka: TestKafka | string): string | null {
  if (typeof kafka !== 'string') return kafka.address
  if (process.env.CI === 'true') throw new Error(`The tests on Kafka cannot run: ${kafka}`)
  process.stderr.write(`Tests on Kafka are skipped: ${kafka}\n`)
  return null
}
