/**
 * A client of EscrowMQ, a transactional messaging service over HTTP.
 *
 * <p>It has what is hard to get right by hand: a transaction together with a database transaction
 * ({@link EscrowMQ#transaction}, {@link Markers}), answers to checks ({@link Checker}, {@link
 * CheckHandler}), a consumer that keeps its leases ({@link Worker}) and signed webhooks ({@link
 * Webhooks}). The other operations are methods of the generated classes that {@link EscrowMQ}
 * returns.
 */
package dev.escrowmq.client;
