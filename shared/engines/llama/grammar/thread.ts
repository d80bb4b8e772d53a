import { parentPort } from 'node:worker_threads'
import type { Schema } from '#shared/json-schema/json-schema.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { type GrammarOptions, writeSchemaGrammar } from './grammar.ts'

export interface GrammarTask {
  readonly schema: Schema
  readonly param: string
  readonly options: GrammarOptions
}

export type GrammarReply =
  | { readonly grammar: string }
  | { readonly refusal: { readonly message: string; readonly param: string | null } }

parentPort?.on('message', (task: GrammarTask) => parentPort?.postMessage(replyTo(task)))

function replyTo({ schema, param, options }: GrammarTask): GrammarReply {
  try {
    return { grammar: writeSchemaGrammar(schema, param, options) }
  } catch (error) {
    const { message, param: place } = ServiceError.from(error)
    return { refusal: { message, param: place ?? null } }
  }
}
