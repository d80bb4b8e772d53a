import type { ConversationItem } from '#schemas/responses/conversation.ts'
import { newId } from '#shared/id.ts'

/** A conversation of a project, as it was read. */
export interface StoredConversation {
  readonly id: string
  readonly tenant: string
  readonly metadata: Readonly<Record<string, string>>
  /** What was said, in order. */
  readonly items: readonly ConversationItem[]
  /** Job of the response under way; null: there is none. */
  readonly job_id: string | null
  /** Input of that response, which becomes part of the conversation with its output. */
  readonly pending: readonly ConversationItem[]
  /** Grows with each change. */
  readonly version: number
  /** Unix milliseconds. */
  readonly created_at_ms: number
}

/** What may be changed of a conversation. */
export type ConversationChange = Partial<Pick<StoredConversation, 'metadata' | 'items' | 'job_id' | 'pending'>>

/** Conversations, which responses go on in. Each is one row, so that whatever is changed of it is changed at once. */
export interface ConversationStore {
  /** Keeps a new one, unless the project has `most` of them already. */
  create(
    conversation: Pick<StoredConversation, 'id' | 'tenant' | 'metadata' | 'items'>,
    bounds: { readonly keepMs: number; readonly most: number },
  ): Promise<boolean>
  /** One that has not expired. */
  find(tenant: string, id: string): Promise<StoredConversation | undefined>
  /** Changes one that is as it was read, and keeps it for `keepMs` from now. False: somebody else has changed it since. */
  change(read: StoredConversation, change: ConversationChange, keepMs: number): Promise<boolean>
  /** False: there is none. */
  delete(tenant: string, id: string): Promise<boolean>
  /** Forgets those that have expired, at most `limit`. Gives how many. */
  purge(limit: number): Promise<number>
}

/** What keeps conversations beside its jobs. */
export interface HasConversations {
  readonly conversations: ConversationStore
}

/** An id that nobody can guess. */
export function newConversationId(): string {
  return newId('conv_', 32)
}

/** Whether a text can be the id of a conversation: nothing else reaches the store. */
export function isConversationId(text: string): boolean {
  return /^conv_[0-9A-Za-z]{8,64}$/.test(text)
}
